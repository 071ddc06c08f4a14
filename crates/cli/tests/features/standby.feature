@engine @standby
Feature: Workers that come and go
  One worker serves. A second one stands by, and takes over functions and trigger types when the
  first is gone. If a bus sends no state changes, the worker logs that and reads the state again.

  Scenario: A standby takes over, and followers are still notified
    Given a bus whose functions are left to workers
    And a worker that serves on it
    And a worker that stands by on it
    And a follower on it
    When the skill "one" is registered on it
    Then the follower hears of "one"
    When the worker that serves is killed
    Then within 5 seconds the skill "two" can be registered on it
    And the follower hears of "two"
    And its skills are "one two"

  Scenario: A bus that does not tell of its state is read again before every listing
    Given a bus that does not tell of changes of its state
    And a worker that serves on it
    Then the worker says "is read again before every listing"
    And its skills are ""
    When the row "direct" of skills is set on it
    Then its skills are "direct"
    When the skill "own" is registered on it
    Then its skills are "direct own"
    When the row "direct" of skills is deleted on it
    Then its skills are "own"
