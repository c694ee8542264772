"""The pages, in the order of the navigation: each module reads what one template shows.

A module may have `ENDPOINTS`, too: the documents of its subject, for programs.
"""

from runner.page.ask import WebPage
from runner.page.pages import (
    bill,
    compare,
    data,
    environment,
    experiments,
    files,
    log_search,
    models,
    new,
    pools,
    run,
    run_documents,
    runs,
    schedules,
    sweep,
    sweeps,
    whatif,
)
from runner.page.rest import Endpoint

PAGES: tuple[WebPage, ...] = (
    runs.PAGE,
    runs.ROWS,
    new.PAGE,
    run.PAGE,
    files.PAGE,
    log_search.PAGE,
    compare.PAGE,
    pools.LIST,
    pools.PAGE,
    bill.PAGE,
    whatif.PAGE,
    sweeps.PAGE,
    sweep.PAGE,
    sweep.TRIAL_PAGE,
    experiments.LIST_PAGE,
    experiments.PAGE,
    models.PAGE,
    models.MODEL_PAGE,
    data.PAGE,
    schedules.PAGE,
    schedules.SCHEDULE_PAGE,
    environment.PAGE,
)

ENDPOINTS: tuple[Endpoint, ...] = (
    *runs.ENDPOINTS,
    *files.ENDPOINTS,
    *compare.ENDPOINTS,
    *pools.ENDPOINTS,
    *bill.ENDPOINTS,
    *whatif.ENDPOINTS,
    *sweeps.ENDPOINTS,
    *sweep.ENDPOINTS,
    *experiments.ENDPOINTS,
    *new.ENDPOINTS,
    *run_documents.ENDPOINTS,
    *models.ENDPOINTS,
    *data.ENDPOINTS,
    *schedules.ENDPOINTS,
    *environment.ENDPOINTS,
)
