//! Secrets as files for `docker run --env-file`, one per key.
//!
//! A file begins with three comment lines: whose it is, a word for people, and labels, annotations and the names of our
//! variables as JSON. `NAME=value` lines follow; lines of others stay where they are not ours. A file is written whole
//! under a passing name and then linked (a new one: fails where the name is taken) or renamed (a changed one) into place,
//! so that a reader or a crash never meets a part of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    Connection, Created, Draft, Later, Listed, OWNER, RESOURCE, Read, Record, SLOT, StoreError, is_dns_label, owner_label, sha256, short,
};

/// No file of ours is nearly as long; a longer one under our name is somebody else's.
const LONGEST: u64 = 1 << 20;
const SUFFIX: &str = ".env";
const PASSING: &str = ".tmp-";
const LOCK: &str = ".lock-";
/// Resources share this many locks, so that the folder does not fill with lock files.
const LOCKS: u8 = 64;
const SIGNATURE: &str = "# llm-access-agent ";
const WORD: &str = "# Kept by llm-access-agent: its lines are put back when they are changed; other NAME=value lines stay.";

/// The Secrets of one owner in a folder. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Directory {
    path: PathBuf,
    owner: String,
    names: Arc<Mutex<Option<Names>>>,
}

/// The names in the folder as they were last read, so that a look at one resource need not go through thousands of others.
///
/// They are believed while the folder's time of change is the one that was met then, or that our own last change left. A
/// change of somebody else within the same tick of the file system's clock can stay unseen until the next listing of
/// everything; a create that meets its file learns of it at once.
#[derive(Debug)]
struct Names {
    /// The folder's time of change, in seconds and nanoseconds.
    changed: (i64, i64),
    /// Names without their suffix, by the digits at their end.
    by_digits: HashMap<String, BTreeSet<String>>,
}

impl Names {
    fn insert(&mut self, name: &str) {
        self.by_digits.entry(digits(name).to_owned()).or_default().insert(name.to_owned());
    }

    fn remove(&mut self, name: &str) {
        if let Some(names) = self.by_digits.get_mut(digits(name)) {
            names.remove(name);
        }
    }
}

/// The part of a name that its resource gave it, see [`short`].
fn digits(name: &str) -> &str {
    name.rsplit_once('-').map_or(name, |(_, digits)| digits)
}

/// When a name last came to a folder or went from it.
fn changed_at(folder: &Path) -> io::Result<(i64, i64)> {
    fs::metadata(folder).map(|found| (found.mtime(), found.mtime_nsec()))
}

/// The version of a file, and what a change of it has to keep.
#[derive(Debug, Clone, Default)]
pub(super) struct Version {
    /// Digest of the whole content: also a change by hand shows.
    digest: String,
    created: Option<Timestamp>,
    /// Lines that are not ours.
    others: Vec<SecretString>,
    /// Chooses the lock.
    resource: Option<Uuid>,
}

/// The third line of a file.
#[derive(Serialize, Deserialize)]
struct Header {
    format: u32,
    created: Option<Timestamp>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    variables: BTreeSet<String>,
}

impl Directory {
    /// In this folder, which is made with mode 0700 when it is missing.
    ///
    /// # Errors
    /// `Denied` when it cannot be made or is no folder.
    pub fn new(path: PathBuf, owner: &str) -> Result<Self, StoreError> {
        let store = Self { path, owner: owner.to_owned(), names: Arc::default() };
        if let Some(parent) = store.path.parent() {
            fs::create_dir_all(parent).map_err(|error| store.fault("make the folder", &error))?;
        }
        match DirBuilder::new().mode(0o700).create(&store.path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => made.map_err(|error| store.fault("make the folder", &error))?,
        }
        if !store.path.is_dir() {
            return Err(StoreError::Denied {
                object: format!("folder {}", store.path.display()),
                why: "it is no folder".to_owned(),
                cure: "correct secrets.path".to_owned(),
            });
        }
        Ok(store)
    }

    pub(super) async fn all(&self) -> Result<Vec<Read>, StoreError> {
        self.blocking(|store| {
            store.sweep();
            store.list(None)
        })
        .await
    }

    pub(super) async fn of_resource(&self, resource: Uuid) -> Result<Listed, StoreError> {
        Ok(self.blocking(move |store| store.list(Some(resource))).await?.into_iter().collect())
    }

    pub(super) async fn create(&self, connection: &Connection) -> Result<Created, StoreError> {
        let connection = connection.clone();
        self.blocking(move |store| store.make(&connection)).await
    }

    pub(super) async fn write(&self, connection: &Connection, later: &Later, version: &Version) -> Result<(), StoreError> {
        let (connection, later, version) = (connection.clone(), later.clone(), version.clone());
        self.blocking(move |store| store.replace(&connection, &later, &version)).await
    }

    pub(super) async fn delete(&self, name: &str, version: &Version) -> Result<(), StoreError> {
        let (name, version) = (name.to_owned(), version.clone());
        self.blocking(move |store| store.unlink(&name, &version)).await
    }

    pub(super) async fn check(&self) -> Result<String, StoreError> {
        self.blocking(|store| {
            let listed = store.list(None)?;
            let probe = store.passing("check", b"")?;
            drop(probe);
            let mode = fs::metadata(&store.path).map_err(|error| store.fault("look at the folder", &error))?.mode();
            let advice = match mode & 0o077 {
                0 => String::new(),
                _ => format!("; others may enter it (mode {:04o}): chmod 700 it", mode & 0o7777),
            };
            Ok(format!("{} Secrets of {} in {}, which can be written{advice}", listed.len(), store.owner, store.path.display()))
        })
        .await
    }

    /// Off the threads that serve the peers: a disk can be slow.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.clone();
        let object = format!("folder {}", self.path.display());
        tokio::task::spawn_blocking(move || work(&store))
            .await
            .unwrap_or_else(|error| Err(StoreError::Transient { object, why: error.to_string(), retry_after: None }))
    }

    // ---- reading ----

    fn list(&self, resource: Option<Uuid>) -> Result<Vec<Read>, StoreError> {
        let fault = |error: io::Error| self.fault("read the folder", &error);
        let names: Vec<String> = match resource {
            Some(resource) => self.names_of(&short(resource)).map_err(fault)?,
            None => {
                let mut known = self.names();
                let read = known.insert(self.read_names().map_err(fault)?);
                read.by_digits.values().flatten().cloned().collect()
            }
        };
        let mut listed = Vec::new();
        for name in names {
            let Some(content) = self.read(&name)? else {
                continue;
            };
            let Some(record) = self.parse(&name, &content) else {
                continue;
            };
            let uuid = record.uuid(&record.labels, RESOURCE).ok();
            if resource.is_none() || resource == uuid {
                listed.push(record.read(&self.owner));
            }
        }
        Ok(listed)
    }

    fn names(&self) -> MutexGuard<'_, Option<Names>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The names that end in these digits, as every name does that we give to Secrets of one resource.
    fn names_of(&self, digits: &str) -> io::Result<Vec<String>> {
        let mut known = self.names();
        let now = changed_at(&self.path)?;
        let names = match known.take().filter(|names| names.changed == now) {
            Some(names) => names,
            None => self.read_names()?,
        };
        let found = names.by_digits.get(digits).into_iter().flatten().cloned().collect();
        *known = Some(names);
        Ok(found)
    }

    fn read_names(&self) -> io::Result<Names> {
        // Looked at first: what comes while the folder is read changes the time.
        let mut names = Names { changed: changed_at(&self.path)?, by_digits: HashMap::new() };
        for entry in fs::read_dir(&self.path)? {
            let file = entry?.file_name();
            if let Some(name) = file.to_str().and_then(|file| file.strip_suffix(SUFFIX))
                && is_dns_label(name)
            {
                names.insert(name);
            }
        }
        Ok(names)
    }

    /// A change of our own to the folder. What is known of its names stays known, with `note` telling what the change did
    /// to them.
    fn change<T>(&self, change: impl FnOnce() -> io::Result<T>, note: impl FnOnce(&mut Names)) -> io::Result<T> {
        let mut known = self.names();
        let before = changed_at(&self.path).ok();
        let done = change()?;
        *known = known.take().filter(|names| Some(names.changed) == before).and_then(|mut names| {
            note(&mut names);
            names.changed = changed_at(&self.path).ok()?;
            Some(names)
        });
        Ok(done)
    }

    /// A file's content; nothing when there is none or it cannot be one of ours.
    fn read(&self, name: &str) -> Result<Option<SecretString>, StoreError> {
        let path = self.file(name);
        let fault = |error: &io::Error| self.fault(&format!("read {}", path.display()), error);
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(fault(&error)),
            Ok(found) if !found.is_file() || found.len() > LONGEST => return Ok(None),
            Ok(_) => {}
        }
        let mut text = String::new();
        match File::open(&path).and_then(|mut file| file.read_to_string(&mut text)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == ErrorKind::InvalidData => Ok(None),
            Err(error) => Err(fault(&error)),
            Ok(_) => Ok(Some(text.into())),
        }
    }

    /// A file of this owner, else nothing. The first line alone says whose it is, so that a file of ours whose header was
    /// destroyed is still known.
    fn parse(&self, name: &str, content: &SecretString) -> Option<Record> {
        let mut lines = content.expose_secret().lines();
        let signature: BTreeMap<&str, &str> =
            lines.next()?.strip_prefix(SIGNATURE)?.split(' ').filter_map(|part| part.split_once('=')).collect();
        if *signature.get("owner")? != owner_label(&self.owner) {
            return None;
        }
        let mut header = None;
        let mut data = BTreeMap::new();
        let mut rest = Vec::new();
        for line in lines {
            if header.is_none() && line.starts_with("# {") {
                header = serde_json::from_str::<Header>(line.trim_start_matches("# ")).ok();
                continue;
            }
            if let Some((name, value)) = line.split_once('=')
                && !line.starts_with('#')
            {
                // As docker reads it: the last one counts.
                data.insert(name.to_owned(), SecretString::from(value));
            }
            if line != WORD {
                rest.push(line);
            }
        }
        let mut labels = BTreeMap::new();
        for (key, label) in [("resource", RESOURCE), ("slot", SLOT), ("owner", OWNER)] {
            if let Some(value) = signature.get(key) {
                labels.insert(label.to_owned(), (*value).to_owned());
            }
        }
        let header = header.unwrap_or_else(|| Header {
            format: 0,
            created: None,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            // Without the list of our variables none of these lines can be told to be somebody else's.
            variables: data.keys().cloned().collect(),
        });
        labels.extend(header.labels);
        let others = rest
            .into_iter()
            .filter(|line| {
                let name = line.split_once('=').map_or(*line, |(name, _)| name);
                !header.variables.contains(name)
            })
            .map(SecretString::from)
            .collect();
        let version = Version {
            digest: sha256(content.expose_secret().as_bytes()),
            created: header.created,
            others,
            resource: labels.get(RESOURCE).and_then(|text| Uuid::parse_str(text).ok()),
        };
        Some(Record {
            name: name.to_owned(),
            labels,
            annotations: header.annotations,
            data,
            owned: header.variables,
            created: header.created,
            version: super::Version::File(version),
        })
    }

    // ---- writing ----

    fn render(&self, connection: &Connection, later: &Later, version: &Version) -> Result<SecretString, StoreError> {
        let draft = Draft::new(connection, later, &self.owner);
        let label = |key: &str| draft.labels.get(key).cloned().unwrap_or_default();
        let signature = format!("{SIGNATURE}owner={} resource={} slot={}", label(OWNER), label(RESOURCE), label(SLOT));
        let header = Header {
            format: 1,
            created: version.created,
            labels: draft.labels,
            annotations: draft.annotations,
            variables: draft.data.keys().cloned().collect(),
        };
        let header = serde_json::to_string(&header)
            .map_err(|error| StoreError::Invalid { object: format!("Secret {}", connection.name), why: error.to_string() })?;
        let mut text = format!("{signature}\n{WORD}\n# {header}\n");
        for (name, value) in &draft.data {
            text.push_str(name);
            text.push('=');
            text.push_str(value.expose_secret());
            text.push('\n');
        }
        for line in &version.others {
            let line = line.expose_secret();
            let name = line.split_once('=').map_or(line, |(name, _)| name);
            if !draft.data.contains_key(name) {
                text.push_str(line);
                text.push('\n');
            }
        }
        Ok(text.into())
    }

    fn make(&self, connection: &Connection) -> Result<Created, StoreError> {
        let name = &connection.name;
        if !name.ends_with(&short(connection.resource)) {
            return Err(StoreError::Invalid {
                object: format!("Secret {name}"),
                why: "its name does not end in the first digits of its resource".to_owned(),
            });
        }
        let passing = self.passing(name, b"")?;
        let version = Version { created: passing.made_at(), ..Version::default() };
        let content = self.render(connection, &Later::default(), &version)?;
        passing.fill(content.expose_secret().as_bytes()).map_err(|error| self.fault("write", &error))?;
        // Unlike a rename, a link never replaces what is there.
        match self.change(|| fs::hard_link(&passing.path, self.file(name)), |names| names.insert(name)) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                // Whoever looks next must find it.
                *self.names() = None;
                return Ok(Created::Exists);
            }
            Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::PermissionDenied) => {
                return Err(StoreError::Denied {
                    object: format!("folder {}", self.path.display()),
                    why: format!("files cannot be linked there: {error}"),
                    cure: format!("keep {} on a local file system with hard links", self.path.display()),
                });
            }
            Err(error) => return Err(self.not_placed(name, &error)),
        }
        drop(passing);
        self.sync()?;
        Ok(Created::Made)
    }

    fn replace(&self, connection: &Connection, later: &Later, version: &Version) -> Result<(), StoreError> {
        let name = &connection.name;
        let content = self.render(connection, later, version)?;
        let bytes = content.expose_secret().as_bytes();
        if sha256(bytes) == version.digest {
            return Ok(());
        }
        let lock = self.lock(version.resource)?;
        match self.read(name)? {
            None => return Err(changed(name, "it is gone")),
            Some(now) => self.same(name, &now, version)?,
        }
        let mut passing = self.passing(name, bytes)?;
        self.change(|| fs::rename(&passing.path, self.file(name)), |names| names.insert(name))
            .map_err(|error| self.not_placed(name, &error))?;
        passing.placed = true;
        self.sync()?;
        drop(lock);
        Ok(())
    }

    fn unlink(&self, name: &str, version: &Version) -> Result<(), StoreError> {
        let lock = self.lock(version.resource)?;
        let Some(now) = self.read(name)? else {
            return Ok(());
        };
        self.same(name, &now, version)?;
        match self.change(|| fs::remove_file(self.file(name)), |names| names.remove(name)) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            done => done.map_err(|error| self.fault(&format!("delete {name}{SUFFIX}"), &error))?,
        }
        self.sync()?;
        drop(lock);
        Ok(())
    }

    fn same(&self, name: &str, now: &SecretString, version: &Version) -> Result<(), StoreError> {
        if sha256(now.expose_secret().as_bytes()) == version.digest {
            return Ok(());
        }
        match self.parse(name, now) {
            Some(_) => Err(changed(name, "somebody wrote to it meanwhile")),
            None => Err(StoreError::Foreign { name: name.to_owned() }),
        }
    }

    /// Keeps other processes from changing Secrets of this resource between a comparison and the write that follows it.
    fn lock(&self, resource: Option<Uuid>) -> Result<File, StoreError> {
        let number = resource.map_or(0, |resource| resource.as_bytes()[0] % LOCKS);
        let path = self.path.join(format!("{LOCK}{number:02x}"));
        let open = || OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = self.change(open, |_| ()).map_err(|error| self.fault(&format!("open {}", path.display()), &error))?;
        file.lock().map_err(|error| self.fault(&format!("lock {}", path.display()), &error))?;
        Ok(file)
    }

    /// A file under a passing name, with this content and mode 0600 from its first moment on.
    fn passing(&self, name: &str, content: &[u8]) -> Result<Passing, StoreError> {
        let fault = |error: &io::Error| self.fault("write", error);
        // Process ids do not do: two containers that share a folder can both be process 1.
        let mut random = [0_u8; 8];
        getrandom::fill(&mut random).map_err(|error| fault(&error.into()))?;
        let number = u64::from_le_bytes(random);
        let path = self.path.join(format!("{PASSING}{name}-{number:016x}"));
        let open = || OpenOptions::new().create_new(true).write(true).mode(0o600).open(&path);
        let file = self.change(open, |_| ()).map_err(|error| fault(&error))?;
        let passing = Passing { store: self.clone(), path, file, placed: false };
        // Held as long as we live: whoever gets this lock may sweep the file away.
        passing.file.lock().map_err(|error| fault(&error))?;
        if !content.is_empty() {
            passing.fill(content).map_err(|error| fault(&error))?;
        }
        Ok(passing)
    }

    /// Removes what crashed writers left behind. Failing to is not worth a word: it is tried at every listing.
    fn sweep(&self) {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        for entry in entries {
            if !entry.file_name().to_string_lossy().starts_with(PASSING) {
                continue;
            }
            if let Ok(file) = File::open(entry.path())
                && file.try_lock().is_ok()
            {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// A written file that could not be put in place. It is missing when a sweep took it before it was locked.
    fn not_placed(&self, name: &str, error: &io::Error) -> StoreError {
        if error.kind() == ErrorKind::NotFound && self.path.is_dir() {
            return StoreError::Transient {
                object: format!("Secret {name}"),
                why: "its new content was swept away".to_owned(),
                retry_after: None,
            };
        }
        self.fault(&format!("write {name}{SUFFIX}"), error)
    }

    fn sync(&self) -> Result<(), StoreError> {
        File::open(&self.path).and_then(|folder| folder.sync_all()).map_err(|error| self.fault("flush the folder", &error))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}{SUFFIX}"))
    }

    fn fault(&self, what: &str, error: &io::Error) -> StoreError {
        let object = format!("folder {}", self.path.display());
        let why = format!("cannot {what}: {error}");
        // The cure stands alone in a condition, so it names the folder as well.
        let folder = self.path.display();
        let cure = match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => format!("give the agent's user write access to {folder}"),
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
                format!("make the folder {folder}, or correct secrets.path")
            }
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                return StoreError::Transient { object, why: format!("{why}; free some space"), retry_after: None };
            }
            _ => {
                return StoreError::Transient { object, why, retry_after: None };
            }
        };
        StoreError::Denied { object, why, cure }
    }
}

/// A file under a passing name; goes with its owner unless it was put in place.
struct Passing {
    store: Directory,
    path: PathBuf,
    file: File,
    placed: bool,
}

impl Passing {
    fn fill(&self, content: &[u8]) -> io::Result<()> {
        (&self.file).write_all(content)?;
        self.file.sync_all()
    }

    /// The file system's own time: the file was made a moment ago.
    fn made_at(&self) -> Option<Timestamp> {
        let modified = self.file.metadata().ok()?.modified().ok()?;
        Timestamp::try_from(modified).ok()
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        if !self.placed {
            let _ = self.store.change(|| fs::remove_file(&self.path), |_| ());
        }
    }
}

fn changed(name: &str, why: &str) -> StoreError {
    StoreError::Conflict { object: format!("Secret {name}"), why: format!("{why}; it is read again") }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::Slot;
    use super::super::tests::{RESOURCE_A, connection};
    use super::*;

    async fn found(store: &Directory) -> Vec<String> {
        let mut names: Vec<String> =
            store.of_resource(RESOURCE_A).await.unwrap().stored.into_iter().map(|stored| stored.connection.name).collect();
        names.sort();
        names
    }

    /// Only a reading of the folder takes this name away again.
    fn mark(store: &Directory) {
        store.names().as_mut().unwrap().insert("never-there-00000000");
    }

    fn is_marked(store: &Directory) -> bool {
        store.names().as_ref().is_some_and(|names| names.by_digits.contains_key("00000000"))
    }

    #[test]
    fn a_full_disk_is_waited_for_and_its_cure_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let store = Directory::new(dir.path().join("secrets"), "icarus").unwrap();
        // No space left on the device, and a quota that is used up.
        for errno in [28, 122] {
            match store.fault("write", &io::Error::from_raw_os_error(errno)) {
                StoreError::Transient { object, why, retry_after: None } => {
                    assert_eq!(object, format!("folder {}", store.path.display()));
                    assert!(why.starts_with("cannot write: ") && why.ends_with("; free some space"), "{why}");
                }
                other => panic!("{errno}: {other:?}"),
            }
        }
        // Of another fault of the disk nobody is told that space would help.
        let broken = store.fault("write", &io::Error::from_raw_os_error(5));
        assert!(matches!(&broken, StoreError::Transient { why, .. } if !why.contains("free some space")), "{broken:?}");
    }

    #[tokio::test]
    async fn our_own_changes_cost_no_reading_of_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let store = Directory::new(dir.path().join("secrets"), "icarus").unwrap();
        store.all().await.unwrap();
        mark(&store);
        for slot in [Slot::Project, Slot::Chat] {
            let connection = connection(slot);
            assert_eq!(store.create(&connection).await.unwrap(), Created::Made);
            assert!(found(&store).await.contains(&connection.name));
        }
        for stored in store.of_resource(RESOURCE_A).await.unwrap().stored {
            let super::super::Version::File(version) = &stored.version else { panic!("a file") };
            let changed = Connection { number: 2, ..stored.connection.clone() };
            store.write(&changed, &Later::default(), version).await.unwrap();
        }
        let stored = store.of_resource(RESOURCE_A).await.unwrap().stored;
        assert_eq!(stored.iter().map(|stored| stored.connection.number).collect::<Vec<_>>(), [2, 2]);
        let super::super::Version::File(version) = &stored[0].version else { panic!("a file") };
        store.delete(&stored[0].connection.name, version).await.unwrap();
        assert_eq!(found(&store).await, [stored[1].connection.name.as_str()]);
        assert!(is_marked(&store), "the folder was read again");
        // A listing of everything looks for itself.
        assert_eq!(store.all().await.unwrap().len(), 1);
        assert!(!is_marked(&store));
    }

    #[tokio::test]
    async fn what_others_did_to_the_folder_is_seen_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let [ours, theirs] = [(); 2].map(|()| Directory::new(dir.path().join("secrets"), "icarus").unwrap());
        assert!(found(&ours).await.is_empty());
        let renamed = Connection { name: "llm-key-other-01234567".to_owned(), ..connection(Slot::Project) };
        theirs.create(&renamed).await.unwrap();
        assert_eq!(found(&ours).await, [renamed.name.as_str()]);
        mark(&ours);
        assert_eq!(ours.create(&renamed).await.unwrap(), Created::Exists);
        assert!(ours.names().is_none(), "a name that was not expected is a reason to look");
        fs::remove_file(ours.file(&renamed.name)).unwrap();
        assert!(found(&ours).await.is_empty());
    }
}
