"""Predict a job before it starts: memory, step time, length and cost of a plan, from one measured step of its script.

    plan --measuring--> measurement.json --questions--> Question --answers--> Answer --> plan.prediction
            |                                  ^                                |
            one step without computing,   hosts, prices,                      tables, refusals,
            in a process of its own       what-if                             predicted against measured

`measuring`, `answers` and `machine` start processes or read this machine. All other modules are pure.
"""
