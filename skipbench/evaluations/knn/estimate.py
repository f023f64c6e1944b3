"""`skipbench knn --dry-run`."""

import time
from collections.abc import Sequence

import numpy as np

from skipbench.engine import vectors
from skipbench.evaluations.estimate import TRIAL_IMAGES, Estimate, Trial
from skipbench.evaluations.knn.run import PROBES, KnnCell, KnnRun

TRIAL_TOKENS = 20_000
IVF_SHARE = 0.15  # of an exhaustive search: measured with 10⁶ tokens on two cores


def estimate(run: KnnRun, cells: Sequence[KnnCell]) -> Estimate:
    trial = Trial(run, run.val[:TRIAL_IMAGES], cells)
    per_product = _seconds_per_product(trial.tokens(cells[0]))
    banks = {(cell.blocks, cell.seed): cell for cell in cells}
    work = sum(_search(run, cell, per_product, trial) for cell in banks.values())
    held = max(cell.storage.bytes(run.most_tokens[cell.blocks], run.width(cell)) for cell in cells)
    lists = [run.train.items, run.val.items]
    return trial.estimate(lists, work, held, "bank and neighbours")


def _search(run: KnnRun, cell: KnnCell, per_product: float, trial: Trial) -> float:
    """Seconds of one bank: its index, then the neighbours of all images. Similarities are what
    counts."""
    tokens, per_pair = run.most_tokens[cell.blocks], per_product * run.width(cell)
    whole = trial.tokens_of_an_image(cell) * len(run.val) * tokens
    if cell.storage.index == "flat":
        return per_pair * whole
    lists = vectors.LISTS * tokens**0.5
    learning = vectors.TURNS * vectors.POINTS_A_LIST * lists * lists
    return per_pair * (IVF_SHARE * whole + learning + (lists + PROBES) * tokens)


def _seconds_per_product(tokens: np.ndarray) -> float:
    """Of one number of a query with one of a token in the bank."""
    bank = np.resize(tokens, (TRIAL_TOKENS, tokens.shape[1]))
    index = vectors.Flat(lambda: [bank], *bank.shape)
    index.search(tokens[:64], 30)
    started = time.monotonic()
    index.search(tokens, 30)
    return (time.monotonic() - started) / (len(tokens) * bank.size)
