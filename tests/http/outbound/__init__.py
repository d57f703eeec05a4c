"""Tests of duly.http. A package of another name, because `http` would hide the standard library's."""
