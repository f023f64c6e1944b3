"""What data sets share: their types, layouts and annotation files; how one is found, opened and
verified."""
