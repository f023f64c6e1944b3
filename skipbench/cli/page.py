from skipbench.console import (  # noqa: F401
    open_in_browser,
    page,
    plain_table,
    reader_has_gone,
    shown,
    wide_page,
)
