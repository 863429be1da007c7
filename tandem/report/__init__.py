"""Figures and the report: functions from recorded runs to a figure or an HTML page.

Importing a module that draws imports matplotlib (0.3 s and more).
"""
