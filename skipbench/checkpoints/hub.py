"""The Hugging Face hub: asked quickly, or left alone."""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit
from urllib.request import getproxies

from skipbench.errors import first_line

SECONDS_TO_ANSWER = 5.0


@contextmanager
def quick_answer() -> Iterator[bool]:
    """Use only the cache if the hub is unreachable: its client would retry for a minute and log
    every attempt."""
    from huggingface_hub import constants

    reachable = not constants.HF_HUB_OFFLINE and _can_reach(constants.ENDPOINT)
    logger = logging.getLogger("huggingface_hub")
    before = constants.HF_HUB_OFFLINE, logger.level
    logger.setLevel(logging.ERROR)
    constants.HF_HUB_OFFLINE = not reachable
    try:
        yield reachable
    finally:
        constants.HF_HUB_OFFLINE = before[0]
        logger.setLevel(before[1])


def _can_reach(address: str) -> bool:
    if getproxies():
        return True  # behind a proxy, reachability cannot be tested
    parts = urlsplit(address)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    with suppress(OSError):
        socket.create_connection((parts.hostname or "", port), SECONDS_TO_ANSWER).close()
        return True
    return False


def why_not(source: object, error: Exception, reachable: bool) -> str:
    """The message for a failed download."""
    from huggingface_hub import constants

    reason = first_line(error) if reachable else f"{constants.ENDPOINT} cannot be reached"
    return (
        f"{source} could not be loaded: the download failed ({reason}),\n"
        f"and there is no copy in {constants.HF_HUB_CACHE}."
    )
