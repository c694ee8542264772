"""The formula language of automatic scaling and the samples it reads: no account, no clock."""
