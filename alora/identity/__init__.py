"""KV identity: the check that an adapter leaves the prefix's keys and values exactly as the base makes them.

In the order things happen:

1. ``cases`` turns prompts into calls: single, short, long, and a left-padded batch.
2. ``capture`` runs one call on a model and keeps every layer's K and V.
3. ``reach`` derives from the adapter's targets where its effect must show at the activation token.
4. ``compare`` judges a pair of captures, integer by integer.
5. ``handover`` gives a cached prefix to the adapter and checks the cache afterwards.
6. ``controls`` plants seven faults, each of which the same comparison must find.
7. ``certify`` runs all of it for each dtype and returns the ``certificate``.

``pytest_plugin`` brings the check into users' own repositories. pytest imports ``pytest_plugin`` alone, which imports
torch only when a test uses it.
"""
