"""The endpoint that agents call: TLS, authentication, limits, and the board that holds reports and directives."""
