"""What all tests share."""

from hypothesis import HealthCheck, settings

# Times vary on shared machines; a law is no slower for being true.
settings.register_profile("sonde", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sonde")
