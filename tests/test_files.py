"""Files are written whole, and a full disk is reported with advice that helps."""

import pytest

from skipbench.errors import ResourceError
from skipbench.files import write_whole


@pytest.mark.parametrize("place", ["out", "cache/features/key"])
def test_a_full_disk_is_not_freed_elsewhere(tmp_path, monkeypatch, place):
    """Clearing the cache makes room only where the cache is."""
    monkeypatch.setenv("SKIPBENCH_CACHE", str(tmp_path / "cache"))

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("skipbench.files.os.fsync", full)
    folder = tmp_path / place
    folder.mkdir(parents=True)
    with pytest.raises(ResourceError, match=f"disk full while writing {folder}") as error:
        write_whole(folder / "x.json", b"{}")
    assert ("skipbench cache" in str(error.value)) == place.startswith("cache")
    assert not list(folder.iterdir())
