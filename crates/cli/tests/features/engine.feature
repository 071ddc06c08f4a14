@engine @engines
Feature: On engines that are awkward
  What was found on real engines. It holds on the hub, on a bus with quirks, and on any engine.

  Scenario: Registrations at the same time do not wait for each other
    When 2000 skills are registered, 8 at a time, within 20 seconds
    Then "skills::list" has 2000 rows of "skills"

  Scenario: No answer gets lost
    Given the skill "demo" with "# Demo"
    Then 2000 calls of "skills::list", 8 at a time, are all answered
    And 2000 calls of "skills::resources-templates", 8 at a time, are all answered
    And 500 reads of "iii://demo", 8 at a time, are all answered

  Scenario: Long answers are not lost either
    Given 2000 skills with ids and titles as long as they may be
    Then 40 calls of "skills::resources-list", 8 at a time, are all answered

  Scenario: The changes of one skill arrive in their order
    Given a subscriber to "skills::on-change"
    When the skill "demo" is registered and removed 100 times
    Then the subscriber hears of "demo" 200 times, in turns

  Scenario: A value may be named data
    When I call "state::set" with:
      """
      {"scope": "quirks", "key": "five", "data": 5}
      """
    And I call "state::get" with:
      """
      {"scope": "quirks", "key": "five"}
      """
    Then the result is:
      """
      5
      """

  Scenario: A value must be there
    When I call "state::set" with:
      """
      {"scope": "quirks", "key": "none"}
      """
    Then it fails with "value"

  Scenario: The bus is left as it was found
    When I call "state::list_groups" with:
      """
      {}
      """
    Then the result does not mention "repertoire-probe"

  Scenario: A page names the next one as MCP does, too
    Given the skill "a" with "# A"
    And the skill "b" with "# B"
    When I call "skills::resources-list" with:
      """
      {"limit": 1}
      """
    Then the result at "/nextCursor" is the same as at "/next_cursor"

  @quirks
  Scenario: A connection drops with writes in flight
    Given the bus drops the worker after 3 writes
    When 8 skills are registered at the same time, of which some may fail
    Then eventually the skill "after" can be registered
    And every skill whose registration was acknowledged is listed

  @quirks
  Scenario: No function is called that the bus does not have
    Then the worker calls no function that is not there

  @quirks
  Scenario: A worker in a namespace
    Given a bus whose functions are left to workers
    And a worker that serves on it in the namespace "team"
    Then within 5 seconds the skill "one" can be registered on it
    And its skills are "one"
    And the skill "two" cannot be registered outside of the namespace

  Scenario: A worker that is stopped is taken over, and stands by when it goes on
    Given a bus whose functions are left to workers
    And a worker that serves on it
    And a worker that stands by on it
    When the skill "one" is registered on it
    And the worker that serves is stopped
    Then within 8 seconds the skill "two" can be registered on it
    And its skills are "one two"
    When the worker that serves goes on
    Then within 5 seconds the skill "three" can be registered on it
    And its skills are "one three two"

  @quirks
  Scenario: A worker whose connection freezes is taken over
    Given a bus whose functions are left to workers
    And a worker that serves on it
    And a worker that stands by on it
    When the skill "one" is registered on it
    And the connection of the worker that serves freezes
    Then within 8 seconds the skill "two" can be registered on it
    And its skills are "one two"

  Scenario: A worker that stands by is quiet
    Given a bus whose functions are left to workers
    And a worker that serves on it
    And a worker that stands by on it
    Then within 5 seconds the skill "one" can be registered on it
    And the worker that stands by has said "standing by" at most 1 time
    And the worker that stands by has said "WARN" at most 1 time
