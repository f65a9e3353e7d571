"""The processes of one attempt: how they join, agree on a step, vote, and notice that one has gone."""
