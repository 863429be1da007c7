"""The pictures and the report: plain data in, a figure or a page out.

Importing a picture's module imports matplotlib (0.3 s and more): a script that does not
always draw imports it where it draws.
"""
