import gc

gc.disable()  # until all is imported: each collection would walk all of torch and find nothing


def pytest_collection_finish() -> None:
    """What was imported stays: a collection that walks all of torch and Hydra each time is half of the unit tier."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()
