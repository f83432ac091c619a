"""Search over hyperparameters: space, sampler, batches of runs and the record of a search (docs/search.md)."""
