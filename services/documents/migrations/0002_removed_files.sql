-- A settled document's file goes after a while, and the row says so. The row first: a file that none names is cleared.
alter table documents add column file_removed_at timestamptz;

alter table documents drop constraint documents_check;
alter table documents add constraint documents_have_content
    check (num_nonnulls(storage_key, url, file_removed_at) = 1);

create index documents_files_kept on documents (updated_at)
    where storage_key is not null and status in ('approved', 'rejected', 'failed');
