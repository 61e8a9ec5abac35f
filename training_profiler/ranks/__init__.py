"""Everything about other ranks: messages, comparison, liveness. Never: call a collective, ask the store for a key
that may be missing.
"""
