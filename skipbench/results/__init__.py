"""The store of records, one file each, and those who read it."""
