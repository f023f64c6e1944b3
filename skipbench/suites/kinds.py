"""What a suite can evaluate. An entry in KINDS is all that a further evaluation needs.

Importing this imports nothing heavy: a kind checks its options first, and loads torch to open.
"""

from skipbench.suites._kind import Kind, Opened, Places
from skipbench.suites._neighbour_kinds import ClusterKind, KnnKind
from skipbench.suites._pca_kind import PcaKind
from skipbench.suites._probe_kind import ProbeKind
from skipbench.suites._tokencut_kind import TokencutKind

KINDS: dict[str, Kind] = {
    "probe": ProbeKind(), "tokencut": TokencutKind(), "knn": KnnKind(),
    "cluster": ClusterKind(), "pca": PcaKind(),
}  # fmt: skip

__all__ = ["KINDS", "Kind", "Opened", "Places"]
