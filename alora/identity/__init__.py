"""KV identity: the check that an adapter leaves the prefix's keys and values exactly as the base makes them.

In the order things happen:

1. ``capture`` turns prompts into calls (single, short, long, and a left-padded batch), runs one on a model and keeps
   every layer's K and V.
2. ``compare`` derives from the adapter's targets where its effect must show at the activation token, and judges a pair
   of captures, integer by integer.
3. ``controls`` plants seven faults, each of which the same comparison must find.
4. ``certify`` runs all of it for each dtype, gives a cached prefix to the adapter, and returns the ``certificate``.

``pytest_plugin`` brings the check into users' own repositories. pytest imports ``pytest_plugin`` alone, which imports
torch only when a test uses it.
"""
