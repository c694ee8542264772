"""The pages, in the order of the navigation: each module reads what one template shows."""

from runner.page.ask import Page
from runner.page.pages import compare, files, run, runs

PAGES: tuple[Page, ...] = (
    runs.PAGE,
    run.PAGE,
    files.PAGE,
    compare.PAGE,
)
