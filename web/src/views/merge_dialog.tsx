import type { Work } from '../api/client';
import { actions, useAction, useMergePreview } from '../api/queries';
import { counted, shortCommit } from '../model/format';
import { canMergeAnyway, obstacle } from '../model/work';
import { Button, Loading, Problem } from '../parts/controls';
import { Dialog } from '../parts/dialog';
import { Said } from '../parts/text';
import { useToast } from '../parts/toast';
import { Act } from './act';

/** Asks once before a branch is merged, and says what will happen. */
export function MergeDialog({ work, close }: { work: Work; close: () => void }) {
  const preview = useMergePreview(work.id, true);
  const toast = useToast();
  const anyway = canMergeAnyway(work);
  const merge = useAction((id: string) => actions.merge(id, anyway));
  const start = () =>
    merge.mutate(work.id, {
      onSuccess: (merged) => {
        const commit = merged.commit ? ` as ${shortCommit(merged.commit)}` : '';
        toast({ state: 'merged', text: `Merged into ${merged.base ?? 'its base'}${commit}` });
        close();
      },
    });
  const answer = preview.data;
  // The person knows that the run did not reach its goal, and merges anyway.
  const shownPreview = answer && anyway ? { ...answer, problem: null } : answer;
  const blocked = !!shownPreview && obstacle(shownPreview) !== null;
  return (
    <Dialog title={`Merge into ${shownPreview?.base ?? work.workspace.base ?? 'its base'}`} close={close}>
      <p className="strong">
        <Said>{work.title}</Said>
      </p>
      {anyway && (
        <p>
          It {work.status === 'failed' ? 'failed' : 'was cancelled'}: nothing shows that the work on its
          branch meets its goal.
        </p>
      )}
      {preview.isPending && <Loading lines={2} />}
      <Problem error={preview.error} />
      {shownPreview && (
        <ul className="said">
          <li>
            {counted(shownPreview.ahead, 'commit')} of <code>{work.workspace.branch}</code>
            {shownPreview.behind > 0 && `; the base is ${counted(shownPreview.behind, 'commit')} ahead`}.
          </li>
          {shownPreview.already && <li>The base already contains this work.</li>}
          {!blocked && <li>It merges cleanly.</li>}
          {shownPreview.check_again && <li>The checks run again on the result before the merge.</li>}
          {shownPreview.problem && (
            <li className="c-bad">
              <Said>{shownPreview.problem}</Said>
            </li>
          )}
          <Files title="These files conflict:" files={shownPreview.conflicts} />
          <Files title="These files of your checkout are in the way:" files={shownPreview.dirty} />
        </ul>
      )}
      <Problem error={merge.error} />
      <div className="acts">
        <Act look="primary" disabled={merge.isPending || blocked || preview.isPending} onClick={start}>
          {merge.isPending ? 'Merging' : 'Merge'}
        </Act>
        <Button look="quiet" onClick={close}>
          Cancel
        </Button>
      </div>
    </Dialog>
  );
}

/** Asks once before the last merge of a branch is undone. */
export function UndoMergeDialog({ work, close }: { work: Work; close: () => void }) {
  const toast = useToast();
  const undo = useAction((id: string) => actions.undoMerge(id));
  const start = () =>
    undo.mutate(work.id, {
      onSuccess: ({ base, how }) => {
        const done = how === 'moved_back' ? 'the branch moved back' : 'a commit reverts the merge';
        toast({ state: 'ok', text: `Undid the merge into ${base}: ${done}` });
        close();
      },
    });
  return (
    <Dialog title="Undo merge" close={close}>
      <p className="strong">
        <Said>{work.title}</Said>
      </p>
      <p className="dim">
        The base moves back if nothing was built on the merge; otherwise a commit reverts it. The work stays
        on its own branch and can be merged again.
      </p>
      <Problem error={undo.error} />
      <div className="acts">
        <Act look="danger" disabled={undo.isPending} onClick={start}>
          {undo.isPending ? 'Undoing' : 'Undo merge'}
        </Act>
        <Button look="quiet" onClick={close}>
          Cancel
        </Button>
      </div>
    </Dialog>
  );
}

const Files = ({ title, files }: { title: string; files: string[] }) =>
  files.length > 0 && (
    <li>
      {title}
      <ul className="mono small">
        {files.map((file) => (
          <li key={file}>
            <Said>{file}</Said>
          </li>
        ))}
      </ul>
    </li>
  );
