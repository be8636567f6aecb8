-- What was decided on is forgotten after a while; the timer that does so looks for the oldest decisions.
create index dead_letters_resolved on dead_letters (decided_at) where state in ('sent', 'discarded');
