"""Pure decisions: no network, no clock, no printing, no Azure SDK. Start in `planning.plan`."""
