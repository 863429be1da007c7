"""The pictures and the report: plain data in, a figure or a page out."""
