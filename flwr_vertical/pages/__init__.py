"""Self-contained HTML pages and the style of their figures: what reports and studies are made of.

`flwr_vertical.pages.figures` draws; it is imported where something is drawn, as matplotlib is slow.
"""

from flwr_vertical.pages.page import (
    Section,
    bullet_list,
    dataframe_html,
    details_html,
    format_named,
    format_value,
    human_bytes,
    human_seconds,
    paragraph,
    render_page,
    side_by_side,
    subheading,
)

__all__ = [
    "Section",
    "bullet_list",
    "dataframe_html",
    "details_html",
    "format_named",
    "format_value",
    "human_bytes",
    "human_seconds",
    "paragraph",
    "render_page",
    "side_by_side",
    "subheading",
]
