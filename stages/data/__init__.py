"""Raw tables -> arrays: read, checked, split, standardized, packed."""
