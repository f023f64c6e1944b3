"""Settings of object discovery, as numbers and words: nothing heavy is imported."""

from typing import Literal, get_args

from skipbench.errors import UsageError

Method = Literal["tokencut", "lost"]
Score = Literal["boxes", "masks"]
METHODS, SCORES = get_args(Method), get_args(Score)
TAU, EPS = 0.2, 1e-5


def check_cut(tau: float, eps: float) -> None:
    if not -1 < tau < 1:
        raise UsageError(f"--tau {tau:g}: a cosine lies between -1 and 1")
    if not 0 < eps < 1:
        raise UsageError(f"--eps {eps:g}: give a number between 0 and 1, as 1e-5")
