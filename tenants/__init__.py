"""What each tenant was promised, and how the promise is judged.

Home of Tenant, SLO, contract, verdicts and error budgets, and (in ``tenants.measures``) of the statistics that judge
them. Pure: ints and numpy columns in, figures out. Never here: I/O, clocks, asyncio.
"""
