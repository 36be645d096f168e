"""Durable execution: what starts when, what an attempt does step by step, and recovery."""
