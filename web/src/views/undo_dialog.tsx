import type { Work } from '../api/client';
import { actions, useAction } from '../api/queries';
import { shortCommit } from '../model/format';
import { Button, Problem } from '../parts/controls';
import { Dialog } from '../parts/dialog';
import { Said } from '../parts/text';
import { useToast } from '../parts/toast';
import { Act } from './act';

/** Asks once before the merge of a branch is undone, and says how it was undone. */
export function UndoDialog({ work, close }: { work: Work; close: () => void }) {
  const toast = useToast();
  const undo = useAction(() => actions.undoMerge(work.id));
  const start = () =>
    undo.mutate(undefined, {
      onSuccess: ({ how, base, commit }) => {
        const text =
          how === 'moved_back'
            ? `Merge undone: ${base} is back at ${shortCommit(commit)}`
            : `Merge undone: ${shortCommit(commit)} on ${base} reverts it`;
        toast({ state: 'cancelled', text });
        close();
      },
    });
  return (
    <Dialog title="Undo merge" close={close}>
      <p className="strong">
        <Said>{work.title}</Said>
      </p>
      <p className="dim">
        The base moves back or, if it has newer commits, a new commit reverts the merge. The work stays on its
        branch and can be merged again.
      </p>
      <Problem error={undo.error} />
      <div className="acts">
        <Act look="danger" disabled={undo.isPending} onClick={start}>
          {undo.isPending ? 'Undoing' : 'Undo merge'}
        </Act>
        <Button look="quiet" onClick={close}>
          Not now
        </Button>
      </div>
    </Dialog>
  );
}
