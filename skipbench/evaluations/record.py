"""Parts of a record that are the same for every evaluation."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from skipbench.backbones.base import Backbone
from skipbench.engine.machine import of_this_run, peak_bytes
from skipbench.metrics.intervals import METHOD, RESAMPLES
from skipbench.pipeline import Inspection


def checkpoint_part(inspection: Inspection, backbone: Backbone) -> dict[str, Any]:
    choice = inspection.require_sound()
    return {
        **backbone.facts.to_json(),
        "residual": backbone.residual,
        "residual_source": choice.source,
        "warning": choice.warning,
    }


def environment_part(backbone: Backbone) -> dict[str, Any]:
    return of_this_run(str(backbone.device))


def recorded_protocol(
    protocol: Mapping[str, Any], usual: Mapping[str, Any], *interval: str
) -> dict[str, Any]:
    """With `changes`: [the protocol's own value, this one]. usual: the protocol's own values;
    interval: what is fixed in its resamples."""
    changes = {k: [v, protocol[k]] for k, v in usual.items() if protocol[k] != v}
    how = ["95 %", "bootstrap over images", *interval, f"{RESAMPLES:,} resamples", METHOD]
    return {**protocol, "changes": changes, "interval": ", ".join(how)}


def timing_part(seconds: Mapping[str, float], images: int, computed: int) -> dict[str, Any]:
    """seconds: by stage; computed: number of images whose features were not stored already."""
    rate = computed / max(seconds["features"], 1e-9)
    return {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        **{f"{stage}_seconds": round(spent, 3) for stage, spent in seconds.items()},
        "images": images,
        "images_computed": computed,
        "images_per_second": round(rate, 3) if computed else None,  # of extraction
        "peak_memory_bytes": peak_bytes(),
    }
