"""`sched-ctl demo`: the lab engine under the OS's own scheduling and under a policy."""
