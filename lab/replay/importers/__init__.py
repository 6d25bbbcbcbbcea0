"""Drives that others recorded, as logs: videos, folders of pictures, ROS 2 bags, openpilot segments."""
