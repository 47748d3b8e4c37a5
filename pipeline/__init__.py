"""What many nodes recorded, put together by Spark: the same code on a laptop and on a cluster.

Only `sched_ctl.pipeline.spark` and what imports it need the extra [fleet]; a gateway does not.
"""
