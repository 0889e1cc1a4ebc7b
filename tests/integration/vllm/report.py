"""What a worker's store has counted: a function that vLLM calls in each worker (collective_rpc)."""


def of_worker(worker):
    """Empty in a worker that stores nothing."""
    runner = getattr(worker, "model_runner", None) or worker.worker.model_runner
    half = getattr(runner, "aux_output_connector", None)
    store = getattr(half, "store", None)
    if store is None:
        return {}
    return {"store": store.stats().as_dict(), "findings": [finding.text for finding in store.take_findings()], "failure": half.failure,
            "tier": store.tier_stats().as_dict()}
