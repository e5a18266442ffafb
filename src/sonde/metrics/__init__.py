"""Metrics: functions of tensors that yield numbers. What they are, what they are called, and those
that come with Sonde. When they are called is the business of `sonde.capture`."""
