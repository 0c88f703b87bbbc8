"""The APIs that the gateway can read: for each, where a request says how much it wants and an answer how much it was.

``dialect``: what a dialect is; the rest one a file: ``openai`` (chat, completions), ``responses`` (OpenAI Responses),
``messages`` (Anthropic Messages), ``other`` (whatever else makes a server work).
"""
