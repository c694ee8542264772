"""`runner pool autoscale` and `runner cost whatif`. Start in `autoscale`."""
