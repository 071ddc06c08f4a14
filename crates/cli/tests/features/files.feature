@engine @files
Feature: Skills and prompts in files

  Scenario: A file appears, changes and vanishes without a restart
    When the file "skills/notes.md" is written:
      """
      # Notes

      Keeps notes.
      """
    Then eventually "skills::list" has the row "notes" of "skills"
    And the row "notes" of "skills::list" has the origin "fs"
    When I read "iii://notes"
    Then the text starts with "# Notes"
    When I read "iii://skills"
    Then the text has the line "## Custom skills"
    And the text has the line "- [`notes`](iii://notes) — Notes — Keeps notes."
    When the file "skills/notes.md" is written:
      """
      # Changed
      """
    Then eventually reading "iii://notes" gives a text that starts with "# Changed"
    When the file "skills/notes.md" is removed
    Then eventually "skills::list" has 0 rows of "skills"

  Scenario: Folders are segments
    When the file "skills/foo/bar/baz.md" is written:
      """
      # Baz
      """
    Then eventually "skills::list" has the row "foo/bar/baz" of "skills"

  Scenario: A folder with a SKILL.md is one skill with the folder's id
    When the file "skills/pdf-forms/SKILL.md" is written:
      """
      ---
      name: pdf-forms
      description: Fills forms. Use when a form is given.
      ---
      # Forms
      """
    Then eventually "skills::list" has the row "pdf-forms" of "skills"
    And "skills::list" has 1 row of "skills"

  Scenario: Braces in patterns
    When the file "more/a/one.md" is written:
      """
      # One
      """
    And the file "more/b/two.md" is written:
      """
      # Two
      """
    And the file "more/c/three.md" is written:
      """
      # Three
      """
    Then eventually "skills::list" has the row "a/one" of "skills"
    And eventually "skills::list" has the row "b/two" of "skills"
    And "skills::list" has 2 rows of "skills"

  Scenario: Names that are no ids are skipped
    When the file "skills/Bad Name.md" is written:
      """
      # Bad
      """
    And the file "skills/good.md" is written:
      """
      # Good
      """
    Then eventually "skills::list" has the row "good" of "skills"
    And "skills::list" has 1 row of "skills"

  Scenario: What is registered hides the file, and gives it back
    When the file "skills/demo.md" is written:
      """
      # From the file
      """
    Then eventually "skills::list" has the row "demo" of "skills"
    Given the skill "demo" with "# Registered"
    Then "skills::list" has 1 row of "skills"
    And the row "demo" of "skills::list" has the origin "state"
    When I read "iii://demo"
    Then the text is "# Registered"
    When I read "iii://skills"
    Then the text has no line "## Custom skills"
    When the skill "demo" is unregistered
    And I read "iii://demo"
    Then the text starts with "# From the file"

  Scenario: Prompts in files
    When the file "prompts/open-pr.md" is written:
      """
      ---
      description: Opens a pull request.
      ---
      Open it. Do not touch {this}.
      """
    Then eventually "prompts::list" has the row "open-pr" of "prompts"
    And the row "open-pr" of "prompts::list" has the origin "fs"
    When I call "prompts::mcp-get" with:
      """
      {"name": "open-pr", "arguments": {"this": "x"}}
      """
    Then the result at "/description" is "Opens a pull request."
    And the result at "/messages/0/content/text" starts with "Open it. Do not touch {this}."
    When the file "prompts/open-pr.md" is removed
    Then eventually "prompts::list" has 0 rows of "prompts"

  Scenario: A prompt's frontmatter names it
    When the file "prompts/file.md" is written:
      """
      ---
      name: other-name
      description: d
      ---
      Text.
      """
    Then eventually "prompts::list" has the row "other-name" of "prompts"

  Scenario Outline: Prompts that are skipped
    When the file "prompts/bad.md" is written:
      """
      <text>
      """
    And the file "prompts/good.md" is written:
      """
      ---
      description: d
      ---
      Text.
      """
    Then eventually "prompts::list" has the row "good" of "prompts"
    And "prompts::list" has 1 row of "prompts"

    Examples:
      | text                                |
      | no frontmatter                      |
      | ---\nname: bad\n---\nno description |
      | ---\ndescription: [\n---\nbroken    |
      | ---\ndescription: ' '\n---\nblank   |
