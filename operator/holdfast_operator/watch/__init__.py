"""What the API server tells by itself: kopf's raw events as wake-ups, and what was seen last."""
