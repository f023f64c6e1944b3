"""The machine: device and precision, progress, signals, locks."""
