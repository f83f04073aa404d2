"""How workers learn that there is work. A message is only a doorbell: losing one costs time, never correctness."""
