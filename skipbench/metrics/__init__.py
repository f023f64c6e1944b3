"""Pure functions on arrays: no files, no models, no options."""
