"""Self-contained HTML pages and the style of their figures: what reports and studies are made of.

`flwr_vertical.pages.figures` draws; it is imported where something is drawn, as matplotlib is slow.
"""
