"""The endpoint that agents call: TLS, who calls, what a caller may take, one report in and one directive out."""
