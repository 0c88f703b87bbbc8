"""A live run carried by several processes: each a whole run over its share of the workload, with one queue between them.

parent                                           worker i of N (its own process and event loop)
SharedQueue: the one Dispatcher  <- events --    LiveRun over Share(i, N): pacer, look-ahead, backend, recorder
Crew: start, stop, gather        -- grants ->    RemoteDriver: the LiveDriver's interface over a Link
"""
