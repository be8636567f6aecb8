-- Dead-letter topics forget, too, after a while: what was cleared and lies on no topic any more can go altogether.
create index dead_letters_cleared on dead_letters (stored_at) where cleared_at is not null;
